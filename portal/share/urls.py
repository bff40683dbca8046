from django.urls import path

from portal.share import views

urlpatterns = [
    path("share/", views.share, name="share"),
    path("trades/", views.trades, name="trades"),
]
