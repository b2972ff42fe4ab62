"""What happens inside a hospital: tasks, local training, the client half of each method. No aggregation, no Flower."""
