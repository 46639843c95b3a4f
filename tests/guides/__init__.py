"""What PyTorch's guides on compiled programs show, as a reader of them would try it."""
