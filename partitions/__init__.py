"""Data sets, splits over sites and requests. No models, no Flower."""
