"""Reads the sources in a wheel of an engine, or in its source archive, without installing or importing it."""

import ast
import tarfile
import zipfile
from dataclasses import dataclass, field


@dataclass
class Member:
    """Of a class: a method, property, field or attribute."""

    name: str
    function: object = None  # ast.FunctionDef; None: a field
    is_abstract: bool = False
    is_property: bool = False

    def parameters(self):
        """Names of the positional parameters without self, and whether **kwargs takes all others."""
        given = self.function.args
        names = [one.arg for one in given.posonlyargs + given.args]
        decorators = {ast.unparse(one) for one in self.function.decorator_list}
        return names[0 if "staticmethod" in decorators else 1 :], given.kwarg is not None


@dataclass
class Class:
    module: str
    name: str
    members: dict = field(default_factory=dict)
    has_unknown_base: bool = False  # of another package: it may have more members


def own_members(node):
    """Members that a class statement itself defines, including what its methods assign to self."""
    found = {}
    for item in node.body:
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            decorators = " ".join(ast.unparse(one) for one in item.decorator_list)
            found[item.name] = Member(item.name, item, "abstractmethod" in decorators, "property" in decorators)
            for inner in ast.walk(item):
                targets = inner.targets if isinstance(inner, ast.Assign) else (
                    [inner.target] if isinstance(inner, ast.AnnAssign) else [])
                for target in targets:
                    for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                        if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "self":
                            found.setdefault(part.attr, Member(part.attr))
        elif isinstance(item, ast.AnnAssign):
            found[item.target.id] = Member(item.target.id)
        elif isinstance(item, ast.Assign):
            for target in item.targets:
                found[ast.unparse(target)] = Member(ast.unparse(target))
    return found


def statements(body):
    """Top-level statements, with those below `if` and `try`."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try)):
                yield from statements(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body)


class SourceArchive:
    """As zipfile.ZipFile; its Python files only."""

    def __init__(self, path):
        with tarfile.open(path) as archive:
            self._files = {member.name.split("/", 1)[1]: archive.extractfile(member).read()
                           for member in archive if member.isfile() and member.name.endswith(".py")}

    def namelist(self):
        return self._files.keys()

    def read(self, name):
        return self._files[name]


class Wheel:
    """package: the engine's own one. Members of classes of other packages are not known."""

    def __init__(self, path, package="vllm"):
        self.package = package
        self.archive = zipfile.ZipFile(path) if path.suffix == ".whl" else SourceArchive(path)
        self.names = set(self.archive.namelist())
        self._trees = {}

    def file_of(self, module):
        base = module.replace(".", "/")
        return next((name for name in (base + ".py", base + "/__init__.py") if name in self.names), None)

    def tree(self, module):
        if module not in self._trees:
            name = self.file_of(module)
            self._trees[module] = None if name is None else ast.parse(self.archive.read(name))
        return self._trees[module]

    def defines(self, module, name):
        """Whether `from module import name` finds something."""
        if self.file_of(f"{module}.{name}") is not None:
            return True
        tree = self.tree(module)
        if tree is None:
            return False
        for node in statements(tree.body):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
                return True
            if isinstance(node, (ast.Import, ast.ImportFrom)) and any((a.asname or a.name) == name for a in node.names):
                return True
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return True
            # a package that imports on demand names its exports
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and name in ast.unparse(node.value):
                return True
        return False

    def find_class(self, module, name):
        """A class with the members of all its bases in the package. None: there is none."""
        tree = self.tree(module)
        for node in statements(tree.body) if tree is not None else ():
            if isinstance(node, ast.ClassDef) and node.name == name:
                return self._class(module, node)
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(self.package):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self.find_class(node.module, alias.name)
        return None

    def _class(self, module, node):
        made = Class(module, node.name)
        for base in reversed(node.bases):
            found = self.find_class(module, ast.unparse(base).split("[")[0])
            if found is None:
                made.has_unknown_base |= ast.unparse(base).split("[")[0] not in ("ABC", "Generic", "Protocol", "object")
            else:
                made.members.update(found.members)
                made.has_unknown_base |= found.has_unknown_base
        made.members.update(own_members(node))
        return made

    def first_arguments(self, method):
        """Texts with which any module calls a method of this name."""
        for name in sorted(self.names):
            if not name.endswith(".py") or not name.startswith(self.package + "/") or method.encode() not in (text := self.archive.read(name)):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
                    given = node.args[:1] or [keyword.value for keyword in node.keywords if keyword.arg == "method"]
                    if given and isinstance(given[0], ast.Constant) and isinstance(given[0].value, str):
                        yield given[0].value

    def has_text(self, folder, text):
        """Whether a module below this folder has it."""
        return any(name.startswith(folder) and name.endswith(".py") and text.encode() in self.archive.read(name)
                   for name in self.names)

    def calls(self, module, method):
        """Whether a module calls a method of this name."""
        tree = self.tree(module)
        return tree is not None and any(isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and
                                        node.func.attr == method for node in ast.walk(tree))


class Changed(Wheel):
    """A version in which a name has changed."""

    def __init__(self, wheel, old, new):
        self.package, self.names, self._trees = wheel.package, wheel.names, {}
        old, new, read = old.encode(), new.encode(), wheel.archive.read
        self.archive = type("Archive", (), {"read": lambda _, name: read(name).replace(old, new)})()
