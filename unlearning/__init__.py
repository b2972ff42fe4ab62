"""The mathematics of each unlearning method: tensors and models in, tensors out. No I/O, no messages."""
