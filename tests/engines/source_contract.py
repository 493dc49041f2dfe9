"""What our code needs of an engine, read from both sources: a version of the engine has it, or one line says what it lacks."""

import ast

from wheel import own_members, statements


def trees_of(package, folders):
    """Our Python files in these folders, by path."""
    files = sorted(path for folder in folders for path in package.glob(f"{folder}/*.py"))
    return {str(path.relative_to(package)): ast.parse(path.read_text()) for path in files}


def check_arguments(call, wanted, takes_all):
    """Arguments of a call that a function of these parameters does not take."""
    surplus = [ast.unparse(one) for one in call.args[len(wanted):] if not isinstance(one, ast.Starred)]
    return surplus + [one.arg for one in call.keywords if one.arg and one.arg not in wanted and not takes_all]


def attributes_of(tree, expression):
    return {node.attr for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == expression}


class Contract:
    """engine: its name for people. trees: our files. hooks: our classes whose public methods only the engine calls.

    objects: what an expression in a file is in the engine, as "module:Class". Each attribute that is read from it must exist; an
    attribute that is read by getattr() with a default may be missing.
    """

    def __init__(self, engine, trees, objects, hooks):
        self.engine, self._trees, self._objects, self._hooks = engine, trees, objects, hooks

    def problems(self, wheel):
        """Everything that a version of the engine lacks, one line each."""
        checks = (self._check_imports, self._check_classes, self._check_calls, self._check_attributes)
        return [problem for check in checks for problem in check(wheel)]

    @staticmethod
    def _imports_of(tree, package):
        """(module, name, whether it may be missing) of each import from the engine."""
        optional = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.Try) and node.handlers
                    for part in node.body for inner in ast.walk(part)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package:
                for alias in node.names:
                    yield node.module, alias.name, id(node) in optional

    def _check_imports(self, wheel):
        for file, tree in self._trees.items():
            for module, name, is_optional in self._imports_of(tree, wheel.package):
                if not is_optional and not wheel.defines(module, name):
                    yield f"{file}: {self.engine} has no {module}.{name}"

    def _check_signature(self, file, ours, theirs):
        """Whether the engine's calls of a hook fit ours."""
        if theirs.function is None or ours.function is None:
            return
        if ours.is_property != theirs.is_property:
            yield f"{file}: {ours.name}: a property in one, a method in the other"
            return
        (named, takes_all), (wanted, _) = ours.parameters(), theirs.parameters()
        missing = [name for name in wanted if name not in named]
        if missing and not takes_all:
            yield f"{file}: {ours.name}: {self.engine} gives {', '.join(missing)}"
        elif named[: len(wanted)] != [name for name in wanted if name not in missing]:
            yield f"{file}: {ours.name}: {self.engine} gives ({', '.join(wanted)}), ours takes ({', '.join(named)})"
        defaults = ours.function.args.defaults
        needed = [name for name in named[: len(named) - len(defaults)] if name not in wanted]
        if needed:
            yield f"{file}: {ours.name}: {self.engine} does not give {', '.join(needed)}"

    def _check_classes(self, wheel):
        """Each of our classes with bases in the engine: nothing abstract is left, overrides fit, and hooks exist."""
        for file, tree in self._trees.items():
            origin = {name: module for module, name, _ in self._imports_of(tree, wheel.package)}
            for node in statements(tree.body):
                if not isinstance(node, ast.ClassDef):
                    continue
                bases = [wheel.find_class(origin[name], name) for name in map(ast.unparse, node.bases) if name in origin]
                if not bases or None in bases:
                    continue  # no base in the engine, or one that _check_imports() misses
                theirs = {name: member for base in reversed(bases) for name, member in base.members.items()}
                ours = own_members(node)
                for name, member in theirs.items():
                    if member.is_abstract and name not in ours:
                        yield f"{file}: {node.name} lacks the abstract {name}()"
                for name, member in ours.items():
                    if name in theirs and name != "__init__":
                        yield from self._check_signature(file, member, theirs[name])
                    elif member.function is not None and not name.startswith("_") and node.name in self._hooks:
                        yield f"{file}: {self.engine} never calls {node.name}.{name}()"

    def _check_calls(self, wheel):
        """What we call in the engine takes what we give: base classes' methods by super(), and classes that we make."""
        for file, tree in self._trees.items():
            origin = {name: module for module, name, _ in self._imports_of(tree, wheel.package)}
            found = {name: wheel.find_class(module, name) for name, module in origin.items()}
            for node in statements(tree.body):
                bases = [found.get(ast.unparse(base)) for base in getattr(node, "bases", [])]
                for call in ast.walk(node):
                    if not isinstance(call, ast.Call):
                        continue
                    function = ast.unparse(call.func)
                    if function.startswith("super()."):
                        named = [base.members[function[8:]] for base in bases if base and function[8:] in base.members]
                        for wanted, takes_all in [one.parameters() for one in named if one.function is not None][:1]:
                            for surplus in check_arguments(call, wanted, takes_all):
                                yield f"{file}: {node.name}: {function}() does not take {surplus}"
                    elif found.get(function) is not None and "__init__" not in found[function].members:
                        fields = [name for name, one in found[function].members.items() if one.function is None]
                        for surplus in check_arguments(call, fields, False):
                            yield f"{file}: {function} has no {surplus}"

    def _check_attributes(self, wheel):
        for file, expressions in self._objects.items():
            if file not in self._trees:
                continue
            for expression, place in expressions.items():
                module, name = place.split(":")
                read = attributes_of(self._trees[file], expression)
                found = wheel.find_class(module, name)
                if not read:
                    yield f"{file}: reads nothing from {expression}: correct the contract's objects"
                elif found is None:
                    yield f"{file}: {self.engine} has no {module}.{name}"
                else:
                    for attribute in sorted(read - set(found.members)):
                        yield f"{file}: {name} has no {attribute}"
