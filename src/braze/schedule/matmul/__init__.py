"""Matrix products and convolutions with what is fused into them."""
