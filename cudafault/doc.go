// Package cudafault is what the client and the shim in the pods have to say to each other, and what it means: the state
// file that arms the shim ([State]), the table in which its processes report ([Processes]), the libraries themselves
// ([Library]), CUDA's and NVML's error codes, and which of them a program sees when the driver reports an XID
// ([Profiles]).
//
// A [Fault] is what somebody asks for on the command line; [Fault.State] turns it into bytes that the shim obeys. The
// shim itself, in C, lies in the folders shim and lib; shim/state.h describes the same files.
//
// The package is pure: it reads no file but what is embedded, and all functions are safe for concurrent use.
package cudafault
