from django.urls import path

from portal.api.api import api
from portal.api.compatible.api import api as compatible
from portal.api.problems import not_found

urlpatterns = [
    path("api/v1/", api.urls),
    path("api/", compatible.urls),
    path("api/<path:rest>", not_found, name="api_not_found"),
]
