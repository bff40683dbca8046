from django.urls import path

from portal.share import limits, trade_book, views

urlpatterns = [
    path("share/", views.share, name="share"),
    path("trades/", views.trades, name="trades"),
    path("trades.csv", trade_book.trades_csv, name="trades_csv"),
    path("trades/limits/<slug:slug>/", limits.trade_limits, name="trade_limits"),
]
