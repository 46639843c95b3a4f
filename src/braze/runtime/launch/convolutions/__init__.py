"""Convolutions of images on the CPU by a kernel of our own."""
