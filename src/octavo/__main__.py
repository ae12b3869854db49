"""`python -m octavo`: the `octavo` command by another way in, for where scripts are not on the PATH."""

from octavo.cli.main import main

if __name__ == "__main__":
    main()
