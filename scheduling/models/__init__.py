"""Django models of clusters, nodes, jobs, leases, rounds, services, sessions, schedules and pending operations."""

from scheduling.models.advance import AdvanceReservation, AdvanceWindow, ReservedNode
from scheduling.models.announcements import Announcement, AnnouncementDismissal
from scheduling.models.anomalies import AnomalyHolder, SharingAnalysis, SharingAnomaly, SharingPart
from scheduling.models.clusters import (
    Cluster,
    ClusterAccess,
    ClusterPause,
    ImportedTrace,
    Node,
    NodeChange,
    TeamUid,
)
from scheduling.models.code import CodeUpload, JobCode
from scheduling.models.drafts import Draft
from scheduling.models.forecasts import JobForecast, KeptForecast
from scheduling.models.idle import GpuUse, IdleRule, IdleStretch, MetricsSource, ProcesslessStretch
from scheduling.models.jobs import Job, JobEvent, JobSpeed
from scheduling.models.labels import JobLabel, LabelKey
from scheduling.models.leases import HeldGpu, Lease, PreemptibleTime
from scheduling.models.metrics import MetricPoint, MetricSample, MetricStream
from scheduling.models.outbox import Operation
from scheduling.models.pipelines import Pipeline, PipelineStep, StepNeed
from scheduling.models.rounds import (
    PolicyState,
    Round,
    RoundRecord,
    ShadowRound,
    ShareBalance,
    ShareInterval,
    Trade,
)
from scheduling.models.schedules import Schedule, ScheduleRun
from scheduling.models.secrets import JobSecret, Secret
from scheduling.models.services import Service, ServiceEvent, ServiceRevision
from scheduling.models.sessions import Session
from scheduling.models.share_hours import FinishTime, ShareBook, ShareHour
from scheduling.models.storage import JobStorage
from scheduling.models.sweeps import Sweep, SweepMember
from scheduling.models.templates import JobTemplate, TemplateUse, TemplateVersion
from scheduling.models.terminals import Terminal
from scheduling.models.trade_limits import TradeLimit
from scheduling.models.traffic import TrafficSample, TrafficStream
from scheduling.models.volumes import JobVolume, Volume

__all__ = [
    "AdvanceReservation",
    "AdvanceWindow",
    "Announcement",
    "AnnouncementDismissal",
    "AnomalyHolder",
    "Cluster",
    "ClusterAccess",
    "ClusterPause",
    "CodeUpload",
    "Draft",
    "FinishTime",
    "GpuUse",
    "HeldGpu",
    "IdleRule",
    "IdleStretch",
    "ImportedTrace",
    "Job",
    "JobCode",
    "JobEvent",
    "JobForecast",
    "JobLabel",
    "JobSecret",
    "JobSpeed",
    "JobStorage",
    "JobTemplate",
    "JobVolume",
    "KeptForecast",
    "LabelKey",
    "Lease",
    "MetricPoint",
    "MetricSample",
    "MetricStream",
    "MetricsSource",
    "Node",
    "NodeChange",
    "Operation",
    "Pipeline",
    "PipelineStep",
    "PolicyState",
    "PreemptibleTime",
    "ProcesslessStretch",
    "ReservedNode",
    "Round",
    "RoundRecord",
    "Schedule",
    "ScheduleRun",
    "Secret",
    "Service",
    "ServiceEvent",
    "ServiceRevision",
    "Session",
    "ShadowRound",
    "ShareBalance",
    "ShareBook",
    "ShareHour",
    "ShareInterval",
    "SharingAnalysis",
    "SharingAnomaly",
    "SharingPart",
    "StepNeed",
    "Sweep",
    "SweepMember",
    "TeamUid",
    "TemplateUse",
    "TemplateVersion",
    "Terminal",
    "Trade",
    "TradeLimit",
    "TrafficSample",
    "TrafficStream",
    "Volume",
]
