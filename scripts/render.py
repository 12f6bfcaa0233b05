"""``shoal render`` as a script: python scripts/render.py --help"""

from shoal.__main__ import main

if __name__ == "__main__":
    main("render")
