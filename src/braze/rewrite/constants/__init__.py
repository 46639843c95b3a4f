"""Passes about values that are known before a call: constants, frozen parameters, host values."""
