"""``shoal export`` as a script: python scripts/export.py --help"""

from shoal.__main__ import main

if __name__ == "__main__":
    main("export")
