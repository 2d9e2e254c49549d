"""The pictures of docs/looking.md, by the code of that page.

MIXTURA_DATA=... python examples/looking.py [docs/looking.md]
"""

import re
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "looking.md"


def shown(text):
    """Blocks of code, and the path of the picture that follows each."""
    return re.findall(r"```python\n(.*?)```\s+!\[.*?\]\((.*?)\)", text, flags=re.DOTALL)


def main(page):
    """Run block after block in one session, and keep what each leaves as `display`."""
    session = {}
    for block, picture in shown(page.read_text()):
        exec(compile(block, page.name, "exec"), session)
        session["display"].figure_.savefig(page.parent / picture, dpi=80)
        print("saved", page.parent / picture)


if __name__ == "__main__":
    import matplotlib

    matplotlib.use("agg")
    main(Path(*sys.argv[1:]) if sys.argv[1:] else PAGE)
