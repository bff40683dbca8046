from django.urls import path, re_path

from portal.share import anomalies, anomaly_tables, limits, trade_book, views

urlpatterns = [
    path("share/", views.share, name="share"),
    path("share/anomalies/", anomalies.anomalies, name="share_anomalies"),
    re_path(
        r"^share/anomalies\.(?P<form>csv|xlsx|pdf|json)$",
        anomaly_tables.anomalies_file,
        name="share_anomalies_file",
    ),
    path("share/anomalies/analyse/", anomalies.analyse, name="share_analyse"),
    path("share/anomalies/again/", anomalies.again, name="share_analyse_again"),
    path("trades/", views.trades, name="trades"),
    re_path(r"^trades\.(?P<form>csv|xlsx|pdf|json)$", trade_book.trades_file, name="trades_file"),
    path("trades/limits/<slug:slug>/", limits.trade_limits, name="trade_limits"),
]
