from collections.abc import Iterable

class HasMethods:
    def __init__(self, methods: str | Iterable[str]) -> None: ...

class Interval:
    def __init__(
        self, type: type, left: float | None, right: float | None, *, closed: str
    ) -> None: ...

class StrOptions:
    def __init__(self, options: set[str]) -> None: ...
