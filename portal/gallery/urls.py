from django.urls import path

from portal.gallery import using, views

urlpatterns = [
    path("templates/", views.templates, name="templates"),
    path("templates/new/", views.new, name="template_new"),
    path("templates/<int:pk>/", views.template, name="template"),
    path("templates/<int:pk>/edit/", views.edit, name="template_edit"),
    path("templates/<int:pk>/use/", using.use, name="template_use"),
    path("templates/<int:pk>/withdraw/", views.withdraw, name="template_withdraw"),
]
