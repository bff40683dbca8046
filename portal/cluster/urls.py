from django.urls import path

from portal.cluster import views

urlpatterns = [path("cluster/", views.cluster, name="cluster")]
