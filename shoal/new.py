"""Copy an algorithm file and its recipe to the current folder, to be edited.

    shoal new my_idea --from ippo     # my_idea.py and my_idea.yaml; python my_idea.py trains it

Nothing is overwritten. The YAML beside the file is its recipe from now on.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path

import shoal
from shoal.config.named import CONFIG_DIR, algorithms
from shoal.config.words import Parser, fail, some_of
from shoal.errors import UserError


def main(words: list[str]) -> int:
    """``shoal new <name> --from <algorithm>``."""
    parser = Parser(__doc__, prog="shoal new")
    parser.add_argument("name", help="of the new algorithm: a Python name")
    parser.add_argument("--from", dest="origin", type=some_of(algorithms()), default="ippo", help="an algorithm")
    options = parser.parse_args(words)
    try:
        file = copy(options.name, options.origin, Path())
    except (UserError, OSError) as error:
        fail(error)
    print(f"{file} and {file.with_suffix('.yaml')}: python {file} env=mpe/simple_tag seeds=2")
    return 0


def copy(name: str, origin: str, folder: Path) -> Path:
    """The file ``<name>.py`` in ``folder``, a copy of an algorithm's; its recipe lies beside it."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UserError(f"{name}: must be a Python name, such as my_idea")
    file = folder / f"{name}.py"
    for path in (file, file.with_suffix(".yaml")):
        if path.exists():
            raise UserError(f"{path}: is there already, and nothing is overwritten")
    if importlib.util.find_spec(name) is not None:
        raise UserError(f"{name}: is the name of an installed Python module; choose another one")
    source = algorithms()[origin]
    stem = Path(source).name
    code = (Path(shoal.__file__).parent / "baselines" / f"{source}.py").read_text()
    recipe = (Path(CONFIG_DIR) / f"{stem}.yaml").read_text()
    file.write_text(code.replace(f"baselines/{source}.py", file.name))
    recipe = re.sub(r"(?m)^(  - algorithm: )\w+$", rf"\g<1>{origin}", recipe)
    file.with_suffix(".yaml").write_text(recipe.replace(f"baselines/{source}.py", file.name))
    return file
