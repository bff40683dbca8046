from django.urls import path

from portal.share import anomalies, limits, trade_book, views

urlpatterns = [
    path("share/", views.share, name="share"),
    path("share/anomalies/", anomalies.anomalies, name="share_anomalies"),
    path("share/anomalies/analyse/", anomalies.analyse, name="share_analyse"),
    path("trades/", views.trades, name="trades"),
    path("trades.csv", trade_book.trades_csv, name="trades_csv"),
    path("trades/limits/<slug:slug>/", limits.trade_limits, name="trade_limits"),
]
