"""What Lethe costs, measured beside plain PyTorch and a stock Flower app in one run. Not part of package or app."""
