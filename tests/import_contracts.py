"""A kind of contract for import-linter: which rooms may import a package."""

from __future__ import annotations

from typing import Any

from importlinter import Contract, ContractCheck, fields, output


class OnlyIn(Contract):
    """Every import of the packages is in one of the rooms; a new module is bound by this from its first day."""

    packages = fields.ListField(subfield=fields.StringField())
    rooms = fields.ListField(subfield=fields.StringField())

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        root = self.session_options["root_packages"][0]
        allowed = tuple(f"{root}.{room}" for room in self.rooms)
        offenders = sorted(
            (importer, package)
            for package in self.packages
            if package in graph.modules
            for imported in {package, *self._parts_of(package, graph)}
            for importer in graph.find_modules_that_directly_import(imported)
            if not any(importer == room or importer.startswith(f"{room}.") for room in allowed)
        )
        return ContractCheck(kept=not offenders, metadata={"offenders": offenders})

    @staticmethod
    def _parts_of(package: str, graph: Any) -> set[str]:
        """An outside package is one module to the graph."""
        parts: set[str] = set() if graph.is_module_squashed(package) else graph.find_descendants(package)
        return parts

    def render_broken_contract(self, check: ContractCheck) -> None:
        for importer, package in check.metadata["offenders"]:
            output.print_error(f"{importer} imports {package}, which only these may: {', '.join(self.rooms)}.")
