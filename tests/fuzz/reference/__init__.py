"""Random programs in the words of Python's and PyTorch's references, run eagerly and compiled.

The other generator (`tests.fuzz`) speaks of what capture knows. This one does not: its idioms are
of the language's data model, the standard library and PyTorch's documentation, and each brings the
worlds in which it may be called again (something deleted, replaced, registered, cleared).

python -m tests.fuzz.reference --programs 2000 --seed 0 --jobs 2 --shrink 20
                                        programs of consecutive seeds; those that differ, shrunk
python -m tests.fuzz.reference --programs 1 --seed 17 --show
                                        one program, printed as a file that can be run
python -m tests.fuzz.reference --programs 20 --sweep
                                        so many programs of each idiom by itself
"""
