/* Stands in for the driver's libnvidia-ml.so.1: the functions of nvml.h that tell which GPUs there are.

   A GPU is a folder named by its UUID below /run/nvidia/gpus (or NVML_INVENTORY), with a file for each thing to know: index, product,
   memory, used (bytes), busy (percent), processes (how many; without it the driver does not tell), health ("ok", or what
   failed). A container has only its own GPUs there, as it would have only their device files. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 64

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7,
       DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };

typedef struct { char uuid[96]; long long index; } gpu_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } utilization_t;
typedef struct { unsigned int pid; unsigned long long memory; unsigned int gpu_instance, compute_instance; } process_t;

static gpu_t gpus[MOST];
static unsigned int count;
static int initialized;

static const char *inventory(void) {
  const char *named = getenv("NVML_INVENTORY");
  return named ? named : "/run/nvidia/gpus";
}

/* The file's first line; empty when there is none. */
static const char *told(const char *uuid, const char *what, char *line, int size) {
  char path[512];
  line[0] = 0;
  snprintf(path, sizeof path, "%s/%s/%s", inventory(), uuid, what);
  FILE *file = fopen(path, "r");
  if (file) {
    if (!fgets(line, size, file)) line[0] = 0;
    fclose(file);
  }
  line[strcspn(line, "\n")] = 0;
  return line;
}

static long long number(const char *uuid, const char *what) {
  char line[64];
  return atoll(told(uuid, what, line, sizeof line));
}

static int lost(const gpu_t *gpu) {
  char line[64];
  return strcmp(told(gpu->uuid, "health", line, sizeof line), "ok") != 0;
}

static int copy(const char *from, char *to, unsigned int size) {
  if (strlen(from) >= size) return TOO_SMALL;
  strcpy(to, from);
  return SUCCESS;
}

static int in_order(const void *one, const void *other) {
  long long a = ((const gpu_t *)one)->index, b = ((const gpu_t *)other)->index;
  return (a > b) - (a < b);
}

int nvmlInitWithFlags(unsigned int flags) {
  DIR *folder = opendir(inventory());
  struct dirent *entry;
  (void)flags;
  if (!folder) return DRIVER_NOT_LOADED;
  count = 0;
  while ((entry = readdir(folder)) && count < MOST) {
    if (entry->d_name[0] == '.') continue;
    snprintf(gpus[count].uuid, sizeof gpus[count].uuid, "%.90s", entry->d_name);
    gpus[count].index = number(entry->d_name, "index");
    count++;
  }
  closedir(folder);
  qsort(gpus, count, sizeof *gpus, in_order);
  initialized = 1;
  return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
  if (!initialized) return UNINITIALIZED;
  initialized = 0;
  return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *version, unsigned int size) { return copy("570.00", version, size); }

int nvmlDeviceGetCount_v2(unsigned int *found) {
  if (!initialized) return UNINITIALIZED;
  *found = count;
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, gpu_t **gpu) {
  if (!initialized) return UNINITIALIZED;
  if (index >= count) return INVALID_ARGUMENT;
  *gpu = &gpus[index];
  return lost(*gpu) ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, gpu_t **gpu) {
  for (unsigned int index = 0; index < count; index++)
    if (strcmp(gpus[index].uuid, uuid) == 0) return nvmlDeviceGetHandleByIndex_v2(index, gpu);
  return NOT_FOUND;
}

int nvmlDeviceGetUUID(const gpu_t *gpu, char *uuid, unsigned int size) { return copy(gpu->uuid, uuid, size); }

int nvmlDeviceGetName(const gpu_t *gpu, char *name, unsigned int size) {
  char line[96];
  return copy(told(gpu->uuid, "product", line, sizeof line), name, size);
}

int nvmlDeviceGetMemoryInfo(const gpu_t *gpu, memory_t *memory) {
  if (lost(gpu)) return GPU_IS_LOST;
  memory->total = number(gpu->uuid, "memory");
  memory->used = number(gpu->uuid, "used");
  memory->free = memory->total - memory->used;
  return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(const gpu_t *gpu, utilization_t *rates) {
  if (lost(gpu)) return GPU_IS_LOST;
  rates->gpu = number(gpu->uuid, "busy");
  rates->memory = 0;
  return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(const gpu_t *gpu, unsigned int *found, process_t *processes) {
  char line[64];
  unsigned int room = *found;
  if (lost(gpu)) return GPU_IS_LOST;
  if (!*told(gpu->uuid, "processes", line, sizeof line)) return NOT_SUPPORTED;
  *found = atoi(line);
  if (room < *found) return TOO_SMALL;
  for (unsigned int index = 0; index < *found; index++) processes[index] = (process_t){1000 + index, 1 << 20, 0, 0};
  return SUCCESS;
}

const char *nvmlErrorString(int code) {
  switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case TOO_SMALL: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
  }
}
