"""``shoal benchmark`` as a script: python scripts/benchmark.py --help"""

from shoal.__main__ import main

if __name__ == "__main__":
    main("benchmark")
