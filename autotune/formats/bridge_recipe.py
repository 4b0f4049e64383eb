"""Read the assignments of a Megatron-Bridge recipe from its syntax tree."""

from __future__ import annotations

import ast

from simcore.errors import InputError, Issue, nearest

MAX_CHARACTERS = 1 << 20
_LETTER = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
_READ = ("model", "ddp", "train", "optimizer", "mixed_precision", "comm_overlap", "dist")
_UNKNOWN = object()


class Recipe:
    """One recipe function; `values` are its assignments by dotted key.

    Parameters
    ----------
    text : str
        A Python file; only its syntax is read.
    where : str
    name : str
        The function; may be empty where the file has one recipe.
    """

    def __init__(self, text: str, *, where: str, name: str = "") -> None:
        if len(text) > MAX_CHARACTERS:
            raise InputError(Issue(where, f"is longer than {MAX_CHARACTERS} characters"))
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InputError(Issue(where, f"is not Python: {str(error)[:80]}")) from error
        self.where = where
        self.functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
        self.names: dict[str, object] = {}
        self.values: dict[str, object] = {}
        self.notes: list[str] = []
        self.model = ""
        self.provider = ""
        self.is_pretraining = False
        for node in tree.body:
            self._constant(node)
        function = self._chosen(name)
        self.name = function.name
        arguments = function.args.args
        for argument, default in zip(arguments[len(arguments) - len(function.args.defaults):],
                                     function.args.defaults, strict=True):
            self.names[argument.arg] = self._value(default)
        self._body(function.body)

    def _chosen(self, name: str) -> ast.FunctionDef:
        recipes = [n for n in self.functions if "config" in n and not n.startswith("_")
                   and not n.startswith("set_")]
        if name:
            if name not in self.functions:
                raise InputError(Issue(f"{self.where}: recipe", f"'{name[:60]}' is not in the "
                                       "file", nearest(name, recipes)))
            return self.functions[name]
        pretraining = [n for n in recipes if "pretrain" in n]
        only = pretraining if len(pretraining) == 1 else recipes
        if len(only) != 1:
            raise InputError(Issue(self.where, f"holds {len(recipes)} recipes",
                                   f"name one: --recipe {', '.join(pretraining or recipes)}"
                                   if recipes else "give a file with a recipe function"))
        return self.functions[only[0]]

    def _constant(self, node: ast.stmt) -> None:
        target = node.targets[0] if isinstance(node, ast.Assign) else (
            node.target if isinstance(node, ast.AnnAssign) else None)
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if isinstance(target, ast.Name) and value is not None:
            found = self._value(value)
            if found is not _UNKNOWN:
                self.names[target.id] = found

    def _body(self, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                key = _dotted(node.targets[0])
                if key.startswith("cfg."):
                    self._assign(key.removeprefix("cfg."), node.value)
                elif key:
                    if isinstance(node.value, ast.Call) and "pretrain_common" in _dotted(
                            node.value.func):
                        self.is_pretraining = True
                    self._constant(node)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                self._call(node.value)
            elif isinstance(node, ast.If):
                test = self._test(node.test)
                if test is None:
                    self.notes.append(f"line {node.lineno}: if {ast.unparse(node.test)[:60]}")
                else:
                    self._body(node.body if test else node.orelse)

    def _test(self, node: ast.expr) -> bool | None:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = self._value(node.left), self._value(node.comparators[0])
            if _UNKNOWN in (left, right):
                return None
            if isinstance(node.ops[0], (ast.Eq, ast.Is)):
                return left == right
            if isinstance(node.ops[0], (ast.NotEq, ast.IsNot)):
                return left != right
            return None
        value = self._value(node)
        return None if value is _UNKNOWN else bool(value)

    def _assign(self, key: str, node: ast.expr) -> None:
        value = self._value(node)
        if value is not _UNKNOWN:
            self.values[key] = value
            return
        if key.partition(".")[0] not in _READ or key.endswith("rotary_base"):
            return
        if not isinstance(node, ast.Call):
            self.notes.append(f"{key} = {ast.unparse(node)[:60]}")
            return
        called = _dotted(node.func)
        ids = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)
               and isinstance(n.value, str) and "/" in n.value]
        if key == "model" and ids:
            self.model = ids[0]
        elif called.endswith("get_mixed_precision_config") and node.args:
            self.values[key] = self._value(node.args[0])
        elif key == "mixed_precision" and not node.args and not node.keywords:
            self.values[key] = called
        elif key == "model" and "GPTProvider175B" in called:
            self.model = "gpt3-175b"
            self._keywords(key, node)
        elif key == "model" and not node.keywords:
            self.provider = called
        elif key in ("model", "comm_overlap", "ddp", "mixed_precision"):
            self._keywords(key, node)
        elif called.endswith("_pipeline_layout") and called in self.functions:
            self._layout(key, self.functions[called])
        elif key.partition(".")[0] in ("model", "train", "ddp", "optimizer"):
            self.notes.append(f"{key} = {ast.unparse(node)[:60]}")

    def _keywords(self, key: str, node: ast.Call) -> None:
        for word in node.keywords:
            value = self._value(word.value)
            if word.arg and value is not _UNKNOWN:
                self.values[f"{key}.{word.arg}"] = value

    def _call(self, node: ast.Call) -> None:
        called = _dotted(node.func)
        if called.endswith("apply_flex_dispatcher_backend"):
            backend = self._value(node.args[1]) if len(node.args) > 1 else None
            if backend in ("deepep", "hybridep"):
                self.values["model.moe_token_dispatcher_type"] = "flex"
                self.values["model.moe_flex_dispatcher_backend"] = backend
        elif called.endswith("_pipeline_model_parallel_layout") and called in self.functions:
            self._layout("model.pipeline_model_parallel_layout", self.functions[called])
        elif called.startswith("_adjust"):
            self.notes.append(f"{called}()")

    def _layout(self, key: str, function: ast.FunctionDef) -> None:
        """Take a layout from the helper's table, by pipeline and virtual size."""
        pp = self.values.get("model.pipeline_model_parallel_size") or 1
        vpp = self.values.get("model.virtual_pipeline_model_parallel_size") or 1
        names = {"mtp_layers": self.values.get("model.mtp_num_layers") or 0}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = _lists(node.value, names)
                if value is not None and node.targets[0].id not in names:
                    names[node.targets[0].id] = value
            if isinstance(node, ast.Dict):
                for where, stages in zip(node.keys, node.values, strict=True):
                    if isinstance(where, ast.Tuple) and [
                            e.value for e in where.elts if isinstance(e, ast.Constant)] == [
                            pp, vpp]:
                        self.values[key] = layout_text(_lists(stages, names))

    def _value(self, node: ast.expr) -> object:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.names.get(node.id, _UNKNOWN)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._value(node.operand)
            return -inner if isinstance(inner, (int, float)) else _UNKNOWN
        if isinstance(node, (ast.List, ast.Tuple)):
            items = [self._value(e) for e in node.elts]
            text = layout_text(items)
            return _UNKNOWN if _UNKNOWN in items else text or items
        key = _dotted(node)
        if key.startswith("torch."):
            return key
        if key.startswith("cfg."):
            return self.values.get(key.removeprefix("cfg."), _UNKNOWN)
        if isinstance(node, ast.Call) and _dotted(node.func) in ("int", "float") and node.args:
            return self._value(node.args[0])
        return _UNKNOWN


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def _lists(node: ast.expr, names: dict[str, object], depth: int = 0) -> object:
    """Evaluate lists of words that are added and multiplied; None for anything else."""
    if depth > 20:
        return None
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.List):
        return [_lists(e, names, depth + 1) for e in node.elts]
    if isinstance(node, ast.BinOp):
        left = _lists(node.left, names, depth + 1)
        right = _lists(node.right, names, depth + 1)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
            return left * right if len(left) * right <= 4096 else None
    return None


def layout_text(stages: object) -> str | None:
    """Write a layout of named layers in Megatron's letters; None where it is none."""
    if not isinstance(stages, list) or not all(isinstance(s, list) for s in stages) or not stages:
        return None
    if any(word not in _LETTER for stage in stages for word in stage):
        return None
    return "|".join("".join(_LETTER[word] for word in stage) for stage in stages)
