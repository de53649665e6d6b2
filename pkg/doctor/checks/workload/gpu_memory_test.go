package workload

import "testing"

// TestHeldByOthers verifies that doctor blames other processes on a GPU only if PyTorch's message proves it.
func TestHeldByOthers(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]bool{
		"CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 14.76 GiB total capacity; 4.37 GiB already allocated; " +
			"14.75 MiB free; 4.43 GiB reserved in total by PyTorch)": true,
		"CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 14.76 GiB total capacity; 13.37 GiB already allocated; " +
			"14.75 MiB free; 14.10 GiB reserved in total by PyTorch)": false,
		"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.01 GiB is free. " +
			"Including non-PyTorch memory, this process has 20.50 GiB memory in use.": true,
		"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.01 GiB is free. " +
			"Including non-PyTorch memory, this process has 70.50 GiB memory in use.": false,
		// In a container, PyTorch may not recognize its own process.
		"CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacty of 14.58 GiB of which 13.31 MiB is free. " +
			"Process 4821 has 14.56 GiB memory in use.": false,
		"CUDA error: out of memory": false,
	} {
		if held, _ := heldByOthers(said); held > 0 != want {
			t.Errorf("%s: others hold %.1f GiB, want others %t", said, held, want)
		}
	}
}
