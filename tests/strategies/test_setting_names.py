"""A setting whose name is a Python keyword is written without its underscore, in errors too."""

from typing import Annotated

import pytest
from pydantic import Field

from partitions.errors import BadInput
from strategies.declaration import MethodConfig, MethodDeclaration


class Config(MethodConfig):
    lambda_: Annotated[float, Field(ge=0, description="the factor of the term")] = 1.0


class Method(MethodDeclaration):
    name = "toy"
    Config = Config


def test_a_keyword_is_a_setting_without_its_underscore():
    assert Method.resolve_config("lethe", {"lambda": 0.5}).lambda_ == 0.5


def test_a_bad_value_of_it_is_refused_with_its_meaning():
    with pytest.raises(BadInput, match=r"toy\.lambda=-1.*the factor of the term"):
        Method.resolve_config("lethe", {"lambda": -1})
