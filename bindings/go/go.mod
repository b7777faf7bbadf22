module github.com/farcall/farcall/bindings/go

go 1.19

require (
	golang.org/x/net v0.21.0
	google.golang.org/grpc v1.63.2
)

require (
	golang.org/x/sys v0.17.0 // indirect
	golang.org/x/text v0.14.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20240227224415-6ceb2ff114de // indirect
	google.golang.org/protobuf v1.33.0 // indirect
)
