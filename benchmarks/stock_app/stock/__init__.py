"""A stock Flower app: FedAvg over sites that train with a DataLoader."""
