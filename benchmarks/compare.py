"""Say what became slower between two runs of the benchmarks:

    python benchmarks/compare.py OLD.json NEW.json

A benchmark became slower if its median grew by more than 10 % and the intervals of both runs do not
overlap. The exit status is 1 if one did. Times of other devices cannot be compared: they are
refused with status 2, unless `--anyway` is passed.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NOTICEABLE = 1.1  # ratio of medians


def main(words: list[str]) -> int:
    paths = [word for word in words if word != "--anyway"]
    if len(paths) != 2:
        print(__doc__)
        return 2
    old, new = (json.loads(Path(path).read_text()) for path in paths)
    devices = [old["device"], new["device"]]
    keys = sorted({*devices[0], *devices[1]})
    differences = [key for key in keys if devices[0].get(key) != devices[1].get(key)]
    for key in differences:
        print(f"other {key}: {devices[0].get(key)} and {devices[1].get(key)}")
    if differences and "--anyway" not in words:
        return 2
    for name in sorted({*old["versions"], *new["versions"]}):
        before = old["versions"].get(name)
        now = new["versions"].get(name)
        if before != now:
            print(f"{name}: {before} -> {now}")
    slower = 0
    for name in sorted({*old["seconds"], *new["seconds"]}):
        if name not in new["seconds"]:
            print(f"not measured any more: {name}")
        elif name not in old["seconds"]:
            print(f"new: {name}")
        else:
            change = changed(old["seconds"][name], new["seconds"][name])
            slower += change == "SLOWER"
            if change:
                print(line(change, name, old["seconds"][name], new["seconds"][name]))
    print(f"{slower} of {len(new['seconds'])} benchmarks became slower")
    return int(slower > 0)


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return "SLOWER", "faster", or "" for a change within noise."""
    if new["median"] > NOTICEABLE * old["median"] and new["low"] > old["high"]:
        return "SLOWER"
    if old["median"] > NOTICEABLE * new["median"] and old["low"] > new["high"]:
        return "faster"
    return ""


def line(change: str, name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    ratio = new["median"] / old["median"]
    before = f"{old['median']:.3g} s ({old['low']:.3g} to {old['high']:.3g})"
    now = f"{new['median']:.3g} s ({new['low']:.3g} to {new['high']:.3g})"
    return f"{change}: {name}: {before} -> {now}, {ratio:.2f} times"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
