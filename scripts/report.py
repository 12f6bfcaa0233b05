"""``shoal report`` as a script: python scripts/report.py --help"""

from shoal.__main__ import main

if __name__ == "__main__":
    main("report")
