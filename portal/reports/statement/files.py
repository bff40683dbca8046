"""Reads from a URL query which statement is requested, and returns this statement as a file."""

from __future__ import annotations

from django.http import Http404
from django.http.response import HttpResponseBase

from accounting.models import Tenant, User
from portal.reports.formats import answer, csv_answer, csv_of_table
from portal.reports.periods import Query, ReportPeriod, asked_period
from portal.reports.scope import chosen_tenant
from portal.reports.statement.figures import period_name, statement_of
from portal.reports.statement.tables import document_of


def statement_in_format(user: User, query: Query, form: str) -> HttpResponseBase:
    """Returns the statement as a file. `form` is the file format.

    For CSV, `?part=` chooses a single table by its key. Raises Http404 for an unknown key.
    """
    tenant, period = read_statement_query(user, query)
    document = document_of(statement_of(user, tenant, period, whole=is_whole(form)))
    name, part = file_name(tenant, period), query.get("part", "")
    if not part or form != "csv":
        return answer(document, form, name)
    table = next((table for table in document.tables if table.key == part), None)
    if table is None:
        raise Http404
    return csv_answer(csv_of_table(table, document.zone), f"{name}-{part}")


def is_whole(form: str) -> bool:
    """Returns whether a file of the format `form` has all rows.

    A PDF has only the rows that the page shows, because it is made for people.
    """
    return form != "pdf"


def file_name(tenant: Tenant, period: ReportPeriod) -> str:
    return f"fairlot-statement-{tenant.slug}-{period_name(period)}"


def read_statement_query(user: User, query: Query, *, is_page: bool = False) -> tuple[Tenant, ReportPeriod]:
    """Returns the team and the period in the URL query. Without a team, returns the first team that the user may see.

    Raises Http404 for a team that the user may not see, and if the user may see no team. Raises WrongQuestion for an
    invalid period. For a page (`is_page`), uses a default period instead of raising WrongQuestion.
    """
    tenant = chosen_tenant(user, query) or Tenant.objects.visible_to(user).order_by("path").first()
    if tenant is None:
        raise Http404
    return tenant, asked_period(query, is_page=is_page)
