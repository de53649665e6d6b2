package workload

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/facts"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/finding"
	"github.com/gpu-fault/kubectl-gpu-fault/pkg/doctor/words"
)

// version is a CUDA version. The zero value is an unknown version.
type version struct{ major, minor int }

// fits reports whether a driver that supports CUDA version v can run a program that was built for the given CUDA
// version, judging only by the version numbers. Since CUDA 11, a driver runs programs for all minor versions of its
// major version.
func (v version) fits(of version) bool {
	return v.major > of.major || v.major == of.major && (v.major >= 11 || v.minor >= of.minor)
}

// cudaOfImage matches a program's CUDA version: cuda>=12.8, cuda12.4, cuda:11.7.1, cu128. cudaMajor matches a version
// without a minor version, such as cuda13.
var (
	cudaOfImage = regexp.MustCompile(
		`(?i)\bcuda[-:_]?(?:>=)?(\d{1,2})[.-](\d)|\bcu(?:da)?(\d{2})(\d)\b`)
	cudaMajor = regexp.MustCompile(`(?i)\bcu(?:da)?[-_]?(9|1\d)\b`)
)

func cudaIn(text string) version {
	if m := cudaOfImage.FindStringSubmatch(text); m != nil {
		major, _ := strconv.Atoi(m[1] + m[3])
		minor, _ := strconv.Atoi(m[2] + m[4])
		return version{major, minor}
	}
	if m := cudaMajor.FindStringSubmatch(text); m != nil {
		major, _ := strconv.Atoi(m[1])
		return version{major, 0}
	}
	return version{}
}

// cudaOf returns the CUDA version of a pod's program, according to the pod's variables and images.
func cudaOf(pod *corev1.Pod) version {
	text := ""
	for _, c := range pod.Spec.Containers {
		for _, name := range []string{"CUDA_VERSION", "NVIDIA_REQUIRE_CUDA"} {
			text += "cuda" + strings.TrimPrefix(strings.Join(facts.EnvOf(c.Env, name), ""), "cuda") + " "
		}
		text += c.Image + " "
	}
	if v := cudaIn(text); v != (version{}) {
		return v
	}
	return cudaOfRelease(text)
}

// release matches NVIDIA's monthly releases of frameworks, such as nvcr.io/nvidia/pytorch:25.08-py3.
var release = regexp.MustCompile(
	`nvidia/(?:pytorch|tensorflow|tritonserver|jax|tensorrt|cuda-dl-base):(\d\d)\.(\d\d)\b`)

// cudaOfRelease returns the major CUDA version of a monthly release: 13 since 25.08, 12 since 23.01.
func cudaOfRelease(image string) version {
	m := release.FindStringSubmatch(image)
	switch {
	case m == nil || m[1]+m[2] < "2301":
		return version{}
	case m[1]+m[2] < "2508":
		return version{12, 0}
	}
	return version{13, 0}
}

// ofBranch contains the newest CUDA version that each driver branch supports, newest branch first.
// Source: https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/
var ofBranch = []struct {
	branch int
	cuda   version
}{
	{590, version{13, 1}}, {580, version{13, 0}}, {575, version{12, 9}}, {570, version{12, 8}}, {565, version{12, 7}},
	{560, version{12, 6}}, {555, version{12, 5}}, {550, version{12, 4}}, {545, version{12, 3}}, {535, version{12, 2}},
	{530, version{12, 1}}, {525, version{12, 0}}, {520, version{11, 8}}, {515, version{11, 7}}, {510, version{11, 6}},
	{495, version{11, 5}}, {470, version{11, 4}}, {465, version{11, 3}}, {460, version{11, 2}}, {455, version{11, 1}},
	{450, version{11, 0}}, {440, version{10, 2}}, {418, version{10, 1}}, {410, version{10, 0}}, {396, version{9, 2}},
	{390, version{9, 1}}, {384, version{9, 0}},
}

// cudaOn returns the newest CUDA version that the node's driver supports.
func cudaOn(n *facts.Node) version {
	if log := n.GPUs().SMI; log != nil && log.CUDA != "" {
		return cudaIn("cuda" + log.CUDA)
	}
	if v := cudaIn("cuda" + cmp.Or(n.Labels["nvidia.com/cuda.runtime-version.full"],
		n.Labels["nvidia.com/cuda.runtime.major"]+"."+n.Labels["nvidia.com/cuda.runtime.minor"])); v != (version{}) {
		return v
	}
	driver, _, _ := strings.Cut(n.Driver(), ".")
	branch, _ := strconv.Atoi(driver)
	for _, known := range ofBranch {
		if branch >= known.branch {
			return known.cuda
		}
	}
	return version{}
}

// oldDriver matches a driver version from before CUDA 11, which is too old for all recent images.
var oldDriver = regexp.MustCompile(`Driver Version: (?:[23]\d\d|4[0-3]\d)\.`)

// compareCUDA compares the CUDA versions of the driver and the program if CUDA reports that the driver is too old. If
// the driver is new enough, the container has no libcuda: CUDA then returns the same error (35).
func compareCUDA(f *facts.Facts, pod *corev1.Pod, n *facts.Node, issue *finding.Finding) {
	tooOld := []string{"driver version is insufficient", "cudaErrorInsufficientDriver"}
	if n != nil && strings.Contains(issue.Evidence[0].Text, "unsatisfied condition: cuda") {
		_, condition, _ := strings.Cut(issue.Evidence[0].Text, "unsatisfied condition: ")
		if needs, has := cudaIn(condition), cudaOn(n); needs.major == has.major && has.fits(needs) {
			issue.Title = fmt.Sprintf("the image requires a driver for CUDA %d.%d, but the node's driver supports "+
				"only CUDA %d.%d",
				needs.major, needs.minor, has.major, has.minor)
			issue.Cause = "The image sets NVIDIA_REQUIRE_CUDA, so NVIDIA's hook refuses to start the container. " +
				"However, within a major version of CUDA, most programs run with an older driver, except programs " +
				"that compile PTX."
			issue.Fix.Text = "Set NVIDIA_DISABLE_REQUIRE=1 in the container's environment where its pod is defined, " +
				"and check whether the program works. If it does not, use an image with an older CUDA version, or " +
				"install a newer driver on the node. " + newerDriver(n)
		}
		return
	}
	if n == nil || !words.ContainsAny(issue.Evidence[0].Text, tooOld) {
		return
	}
	image, driver := cudaOf(pod), cudaOn(n)
	switch {
	case image != version{} && driver.fits(image):
		issue.Evidence = append(issue.Evidence, finding.Evidence{ // the title and fix are from a signature
			Source: facts.PodObject(pod).String() + " and " + n.Object().String(),
			Text: fmt.Sprintf("driver for CUDA %d.%d, program with CUDA %d.%d: new enough", driver.major, driver.minor,
				image.major, image.minor),
		})
		return
	case image != version{} && driver != version{}:
		issue.Evidence = append(issue.Evidence, finding.Evidence{
			Source: facts.PodObject(pod).String() + " and " + n.Object().String(),
			Text: fmt.Sprintf("driver for CUDA %d.%d, program with CUDA %d", driver.major, driver.minor,
				image.major),
		})
		return
	}
	for _, other := range n.Pods {
		if log, found := f.GrepLogs(other, "Driver Version: "); found && oldDriver.MatchString(log.Text) {
			issue.Evidence = append(issue.Evidence, finding.Clipped(log))
			return
		}
	}
	issue.Title = "the container has no driver libraries, or the node's driver is older than the image's CUDA version"
	issue.Confidence = finding.Possible
	issue.Fix.Text = "Run nvidia-smi in the container. If it is missing, the driver was not injected: check the " +
		"pod's limits and RuntimeClass, and the device plugin. If nvidia-smi shows a CUDA version older than the " +
		"image's: " + issue.Fix.Text
}
