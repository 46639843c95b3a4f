"""Python's object protocols: attributes, items, iteration, operators, truth, text."""
