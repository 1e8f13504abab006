"""Convert weights and masks from and to torch.nn."""
