"""Reads from a URL query which operators' report is requested, and returns this report as a file."""

from __future__ import annotations

from django.http import Http404
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404

from accounting.core.consistent_read import consistent_read
from portal.reports.formats import Document, answer
from portal.reports.operations.tables import SUBJECTS, ReportRequest
from portal.reports.periods import Query, asked_period
from scheduling.models import Cluster

OF_ONE_CLUSTER = {"use", "nodes", "chargeback"}


@consistent_read()
def operations_in_format(query: Query, subject: str, form: str) -> HttpResponseBase:
    """Returns the report on `subject` as a file with all rows and exact figures. `form` is the file format."""
    asked, document = read_operations(query, subject)
    name = f"fairlot-{subject}-{asked.period.in_a_name}"
    return answer(document, form, name, alone=document.tables[0].key if len(document.tables) == 1 else "")


def read_operations(query: Query, subject: str, *, page: str | None = None) -> tuple[ReportRequest, Document]:
    """Returns a pair: the reader's request as read from the URL query, and the report on `subject` as a document.

    `page` is None for a file, which has all rows. For a page of the portal, the list of nodes is divided into pages,
    and `page` is the page number. The table of GPUs then covers only the nodes on this page. Raises Http404 for an
    unknown subject or cluster.
    """
    if subject not in SUBJECTS:
        raise Http404
    cluster = None
    if subject in OF_ONE_CLUSTER and (name := query.get("cluster", "")):
        cluster = get_object_or_404(Cluster, name=name)
    period = asked_period(query, is_page=page is not None)
    asked = ReportRequest(period, cluster, page)
    return asked, SUBJECTS[subject][1](asked)
