"""Random Python programs over tensors and state, run eagerly and compiled, compared in all state.

python -m tests.fuzz --seed 17          one program, verbosely; a failing one is shrunk
python -m tests.fuzz --programs 2000    many
"""
