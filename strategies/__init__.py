"""Flower Strategies: recording FedAvg, one class per unlearning method, history and roster. No data access."""
