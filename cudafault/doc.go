// Package cudafault defines the interface between the client and the shim in the pods: the state file that arms the
// shim ([State]), the table in which processes that have loaded the shim report their status ([Processes]), the shim
// libraries ([Library]), the error codes of CUDA and NVML, and the errors that programs see when the driver reports an
// XID ([Profiles]).
//
// A [Fault] is a request from the command line. [Fault.State] converts it to the state for the shim. The shim itself is
// written in C and is in the shim and lib directories; shim/state.h describes the same files.
//
// The package reads only embedded files, and all functions are safe for concurrent use.
package cudafault
