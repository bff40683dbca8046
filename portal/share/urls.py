from django.urls import path

from portal.share import limits, views

urlpatterns = [
    path("share/", views.share, name="share"),
    path("trades/", views.trades, name="trades"),
    path("trades/limits/<slug:slug>/", limits.trade_limits, name="trade_limits"),
]
