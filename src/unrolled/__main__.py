"""`python -m unrolled`: the command line, for `torchrun -m unrolled train …`."""

from unrolled.commands import main

if __name__ == "__main__":
    main()
