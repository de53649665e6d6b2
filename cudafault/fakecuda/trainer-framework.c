// What a framework adds to the training: the lines of its script that choose the device, and TensorFlow's messages (those of 2.16) in place of
// PyTorch's. TRAINING_SCRIPT is a Python file that is not run: of its lines, only these count, and the last one of a kind wins:
//
//	device = torch.device("cpu")
//	tf.config.set_visible_devices([], 'GPU')
//	os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
#define _GNU_SOURCE
#include "trainer.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

static int tensorflow(void)
{
	const char *name = getenv("FRAMEWORK");
	return name && !strcmp(name, "tensorflow");
}

static char *after_blanks(char *text) { return text + strspn(text, " \t"); }

// The string literal at text, which is cut off at its end; NULL if there is none.
static char *literal(char *text)
{
	char quote = *text, *end = quote == '"' || quote == '\'' ? strchr(text + 1, quote) : NULL;
	if (!end) return NULL;
	*end = 0;
	return text + 1;
}

static void read_line(char *line, int *cpu)
{
	char *at, *value;
	line[strcspn(line, "#\r\n")] = 0;
	if ((at = strstr(line, "set_visible_devices(")) && strstr(at, "GPU")) {
		at = after_blanks(at + strlen("set_visible_devices("));
		if (!strncmp(at, "devices=", 8)) at += 8;
		*cpu = *at == '[' && *after_blanks(at + 1) == ']';
	} else if ((at = strstr(line, "torch.device("))) {
		value = literal(after_blanks(at + strlen("torch.device(")));
		if (value) *cpu = !strcmp(value, "cpu");
	} else if ((at = strstr(line, "CUDA_VISIBLE_DEVICES")) && strstr(line, "environ") && (at = strchr(at, '='))) {
		if ((value = literal(after_blanks(at + 1)))) setenv("CUDA_VISIBLE_DEVICES", value, 1);
	}
}

int script_chooses_cpu(void)
{
	const char *path = getenv("TRAINING_SCRIPT");
	char line[1024];
	int cpu = 0;
	if (!path || !*path) return 0;
	FILE *file = fopen(path, "r");
	if (!file) {
		fprintf(stderr, "python3: can't open file '%s': [Errno %d] %s\n", path, errno, strerror(errno));
		exit(2);
	}
	while (fgets(line, sizeof line, file)) read_line(line, &cpu);
	fclose(file);
	return cpu;
}

static void message(char severity, const char *source, const char *text)
{
	struct timeval now;
	struct tm local;
	char when[32];
	gettimeofday(&now, NULL);
	strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&now.tv_sec, &local));
	fprintf(stderr, "%s.%06ld: %c %s] %s\n", when, (long)now.tv_usec, severity, source, text);
}

#define VISIBLE "visible devices: [PhysicalDevice(name='/physical_device:CPU:0', device_type='CPU')"

void report_cpu(int chosen, int driver)
{
	if (!tensorflow()) {
		printf("device: cpu\n");
		return;
	}
	if (!driver) message('I', "external/local_tsl/tsl/cuda/cudart_stub.cc:31", "Could not find cuda drivers on your machine, GPU will not be used.");
	else if (!chosen)
		message('E', "external/local_xla/xla/stream_executor/cuda/cuda_driver.cc:282",
			"failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected");
	printf(VISIBLE "]\n");
}

void report_gpu(long device, const char *name, int driver, int count, int nvml, size_t available, size_t total)
{
	char text[256];
	if (!tensorflow()) {
		printf("device: cuda:%ld %s, driver %d, %d of %d devices, %zu of %zu MiB free\n", device, name, driver, count, nvml, available >> 20, total >> 20);
		return;
	}
	snprintf(text, sizeof text, "Created device /job:localhost/replica:0/task:0/device:GPU:0 with %zu MB memory:  -> device: %ld, name: %s",
		available >> 20, device, name);
	message('I', "tensorflow/core/common_runtime/gpu/gpu_device.cc:1928", text);
	printf(VISIBLE ", PhysicalDevice(name='/physical_device:GPU:%ld', device_type='GPU')]\n", device);
}
