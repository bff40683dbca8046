"""Request and response schemas of the endpoints with which a program gets a token."""

from __future__ import annotations

from typing import Annotated

from ninja import Field, Schema

from portal.api.fields import Line


class NewLogin(Schema):
    name: Annotated[Line, Field(max_length=60)] = Field(
        "", description="What the person will recognise the program by, such as the name of its host."
    )


class Login(Schema):
    user_code: str = Field(description="The code to show to the person.")
    device_code: str = Field(description="The program's secret code, with which it asks for the token.")
    url: str = Field(description="The page at which the person allows the program to have a token.")
    expires_in: int = Field(description="Seconds until the codes end.")
    interval: int = Field(description="Seconds between two questions for the token.")


class LoginCode(Schema):
    device_code: Annotated[Line, Field(max_length=100)]


class LoginAnswer(Schema):
    state: str = Field(description="`waiting`, `allowed`, `denied` or `expired`.")
    token: str = Field(description="The token if it is allowed, else empty. It is handed over once.")
