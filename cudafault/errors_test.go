package cudafault

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The names are held against those that libcuda 550 gave, which the fake driver answers with.
func TestErrorNamesAreTheDrivers(t *testing.T) {
	t.Parallel()
	measured, err := os.ReadFile("fakecuda/errors.tsv")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(measured)) {
		cells := strings.Split(line, "\t")
		code, err := strconv.Atoi(cells[0])
		if err != nil {
			continue // a comment
		}
		n++
		if got := ErrorName(code); got != cells[1] {
			t.Errorf("%d is %s, libcuda says %s", code, got, cells[1])
		}
	}
	if n < 90 || len(Errors()) < n-1 {
		t.Errorf("%d codes of the driver, %d of ours", n, len(Errors()))
	}
}

func TestParseError(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"719": 719, "CUDA_ERROR_LAUNCH_FAILED": 719, "launch-failed": 719, "LAUNCH_FAILED": 719,
		"cudaErrorLaunchFailure": 719, "launchfailure": 719, " 719 ": 719,
		"out-of-memory": 2, "cudaErrorMemoryAllocation": 2, "ecc-uncorrectable": 214, "CUDA_ERROR_CONTAINED": 226,
		"no-device": 100, "unknown": 999,
		"cudaErrorInvalidDevice": 101, "CUDA_ERROR_TENSOR_MEMORY_LEAK": 721, "cudaErrorNoDevice": 100,
		"cudaErrorDevicesUnavailable":   46,
		"cudaErrorSystemDriverMismatch": 803, "not-ready": 600,
	} {
		if got, err := ParseError(text); err != nil || got != want {
			t.Errorf("ParseError(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "empty", "0": "every call that succeeds", "success": "not a known CUDA error",
		"12345": "12345 is not a known CUDA error",
		"-1":    "not a known CUDA error", "6.5": "not a known CUDA error",
		"launch-faild":           "did you mean CUDA_ERROR_LAUNCH_FAILED (719)",
		"CUDA_ERROR_ECC":         "did you mean CUDA_ERROR_ECC_UNCORRECTABLE (214)",
		"cudaErrorIllegalAdress": "did you mean CUDA_ERROR_ILLEGAL_ADDRESS (700)",
		"xyzzy":                  "719 or launch-failed",
		"gpu-is-lost":            "719 or launch-failed",
	} {
		if code, err := ParseError(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseError(%q) = %d, %v, want an error with %q", text, code, err, want)
		}
	}
	for _, code := range Errors() { // every name can be typed, each means itself
		for _, text := range []string{ErrorName(code), RuntimeErrorName(code)} {
			if got, err := ParseError(text); text != "" && (err != nil || got != code) {
				t.Errorf("ParseError(%s) = %d, %v, want %d", text, got, err, code)
			}
		}
	}
}

func TestParseNVMLError(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"15": 15, "gpu-is-lost": 15, "NVML_ERROR_LIB_RM_VERSION_MISMATCH": 18, "Reset-Required": 16, "unknown": 999,
	} {
		if got, err := ParseNVMLError(text); err != nil || got != want {
			t.Errorf("ParseNVMLError(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"0": "every call that succeeds", "5": "5 is not a known NVML error", "gpu-lost": "NVML_ERROR_GPU_IS_LOST (15)",
		"lost": "(15)",
		"x":    "15 or gpu-is-lost",
	} {
		if code, err := ParseNVMLError(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseNVMLError(%q) = %d, %v, want an error with %q", text, code, err, want)
		}
	}
	if got := NVMLErrorName(15) + NVMLErrorName(0) + NVMLErrorName(77); got != "NVML_ERROR_GPU_IS_LOSTNVML_SUCCESS77" {
		t.Error(got)
	}
}

func TestStickyByNature(t *testing.T) {
	t.Parallel()
	var sticky []int
	for _, code := range Errors() {
		if StickyByNature(code) {
			sticky = append(sticky, code)
		}
	}
	if want := []int{
		214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 999,
	}; !slices.Equal(sticky, want) {
		t.Errorf("sticky are %v, want %v", sticky, want)
	}
	if ErrorName(12345) != "12345" || ErrorName(0) != "CUDA_SUCCESS" || RuntimeErrorName(202) != "" {
		t.Error("codes without a name")
	}
}

// The classes of the table must be what the shim hooks, else an error would never come.
func TestErrorsHaveHooks(t *testing.T) {
	t.Parallel()
	var there Class
	for _, f := range hooked(LayerDriver) {
		there |= f.classes
	}
	if there != allClasses {
		t.Errorf("nothing is hooked of %s", allClasses&^there)
	}
	for _, code := range Errors() {
		e, _ := findError(code)
		if e.classes == 0 || e.classes&^there != 0 {
			t.Errorf("%s fails %s", ErrorName(code), e.classes)
		}
	}
}
