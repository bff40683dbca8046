from django.urls import path

from portal.cluster import consumers, views

urlpatterns = [
    path("cluster/", views.cluster, name="cluster"),
    path("cluster/consumers/", consumers.consumers, name="cluster_consumers"),
]
