"""The switches of a chat template: the variables with which a client may change the rendering."""

from collections.abc import Mapping
from typing import Any

import jinja2
import jinja2.meta
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from clawctl.serve.dialects.settings import is_renderers


class _Generation(Extension):
    """`{% generation %}`, a tag that transformers adds to the template language. Its content is parsed as ordinary statements."""

    tags = {"generation"}  # noqa: RUF012 - as its base class declares it

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def switches(template: str | Mapping[str, str]) -> frozenset[str] | None:
    """The variables that switch the rendering of a chat template; None if it cannot be parsed.

    These are the variables that the template reads from outside, except those that the renderer sets. A variable that the template
    sets itself is a switch only if the template tests whether it is defined.
    """
    if isinstance(template, Mapping):  # one template per use: "default", "tool_use"
        of_templates = [switches(text) for text in template.values()]
        return None if None in of_templates else frozenset().union(*filter(None, of_templates))
    try:
        tree = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols", _Generation]).parse(template)
    except jinja2.TemplateError:
        return None
    set_inside = {name.name for name in tree.find_all(nodes.Name) if name.ctx in ("store", "param")}
    tested = {
        test.node.name
        for test in tree.find_all((nodes.Test, nodes.Filter))
        if test.name in ("defined", "undefined", "default", "d") and isinstance(test.node, nodes.Name)
    }
    read = frozenset(name for name in jinja2.meta.find_undeclared_variables(tree) if name not in set_inside or name in tested)
    return frozenset(name for name in read if not is_renderers(name))
