"""Random Python programs over tensors and state, run eagerly and compiled, compared in all state.

python -m tests.fuzz --seed 17          one program, verbosely; a failing one is shrunk
python -m tests.fuzz --programs 2000    many
python -m tests.fuzz --loops --programs 2000
                                        programs that train, statement by statement
python -m tests.fuzz --training --programs 2000
                                        whole training steps, in float64
python -m tests.fuzz --planted --programs 2000 --jobs 16
                                        programs until each bug planted in capture is found

Three bugs that took long, in programs from seed 0 (2026-11-22, Python 3.11, torch 2.13):

| left out | programs |
|---|---|
| the guard of a module's hooks | 442; over 2,000 before more hooks were registered |
| the guard of the ambient state | 121 |
| the strides of tensors | 838 |
"""
