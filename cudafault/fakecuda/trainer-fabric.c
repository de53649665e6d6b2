// A stand-in for NVIDIA's Fabric Manager, which sets up the NVSwitches of a node, and for what the driver knows of it: cuInit returns 802 until
// that is done. Programs that run do not notice when the Fabric Manager ends.
#include "trainer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_READY = 802 };

static void handle_fabric(int fd, struct request *r)
{
	int known = !strcmp(r->path, "/fabric") || !strcmp(r->path, "/readyz");
	answer(fd, known ? "200 OK" : "404 Not Found", known ? "configured\n" : "");
}

// As the real one, it takes no other driver than its own.
int serve_fabric(int port)
{
	const char *own = getenv("FABRICMANAGER_VERSION"), *driver = getenv("DRIVER_VERSION");
	if (!own) own = "unknown";
	if (!driver) driver = "unknown";
	if (strcmp(own, driver)) {
		fprintf(stderr, "fabric manager NVIDIA GPU driver interface version %s don't match with driver version %s. "
			"Please update with matching NVIDIA driver package.\n", own, driver);
		return 1;
	}
	printf("Successfully configured all the available NVSwitches to route GPU NVLink traffic.\n");
	serve(port, handle_fabric);
	return 0;
}

int fabric_state(void)
{
	const char *url = getenv("LAB_NVSWITCH");
	return !url || !*url || http_get(url, NULL, 0) == 200 ? 0 : NOT_READY;
}
