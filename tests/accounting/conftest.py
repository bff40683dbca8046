from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.make import Cast


@pytest.fixture
def cast(db: None) -> "Cast":
    from tests import make  # noqa: PLC0415 - models cannot be imported before Django is set up

    return make.cast()
