from django.urls import path

from portal.share import anomalies, views

urlpatterns = [
    path("share/", views.share, name="share"),
    path("share/anomalies/", anomalies.anomalies, name="share_anomalies"),
    path("share/anomalies/analyse/", anomalies.analyse, name="share_analyse"),
    path("trades/", views.trades, name="trades"),
]
